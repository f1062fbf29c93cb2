"""The shared words: spec, errors, schema, protocols, registry. Imports stdlib and pydantic only."""
