"""What a practitioner would pick, and small parts that several policies share."""
