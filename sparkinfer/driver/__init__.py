"""What runs once, beside the SparkSession. The only room with pyspark."""
