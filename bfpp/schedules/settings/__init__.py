"""Values that all floors share: degrees, sharding, precision, recomputation, attention."""
