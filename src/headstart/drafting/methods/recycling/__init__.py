"""The method recycling."""
