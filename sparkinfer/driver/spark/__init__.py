"""What is asked of Spark, its Java and its cluster. Driver side."""
