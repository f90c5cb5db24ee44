"""Amazon Bedrock Converse wire format."""
