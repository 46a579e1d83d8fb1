"""Moving old telemetry databases, which kept arrays as JSON, into replay stores.

Arrays need the extra `replay`.
"""

from stepwell.telemetry.migrate import MigrationReport, migrate_telemetry, validate_telemetry

__all__ = ["MigrationReport", "migrate_telemetry", "validate_telemetry"]
