"""Several endpoints of one model: hostfiles, the pool that routes requests to them, failover."""
