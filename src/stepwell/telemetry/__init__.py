"""Moving old telemetry databases, which kept arrays as JSON, into replay stores.

Needs the extra `replay`.
"""

try:
    from stepwell.telemetry.migrate import MigrationReport, migrate_telemetry, validate_telemetry
except ModuleNotFoundError as error:
    if error.name not in ("h5py", "hdf5plugin"):
        raise
    raise ImportError("telemetry needs an extra: pip install 'stepwell[replay]'") from error

__all__ = ["MigrationReport", "migrate_telemetry", "validate_telemetry"]
