"""Kills, power cuts and failing disks: what was acknowledged stays, what was not leaves no harm."""
