"""Classical controllers: PID, its tuning rules and the process models that they start from."""
