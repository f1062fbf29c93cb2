"""The parts of `sparkinfer plan`: facts, arithmetic and checks. Driver side."""
