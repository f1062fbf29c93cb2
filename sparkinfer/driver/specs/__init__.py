"""Job files: read, checked, and told about in words. Driver side; imports no pyspark before it is needed."""
