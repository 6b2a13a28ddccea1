"""Speed and acceptance of drafters beside plain decoding, one by one and in a server under load."""
