"""A trainer's parameters published, and what frameworks hold of them read off their own objects."""
