"""Source rows into buffers: parses arrays and images, encodes labels, and cuts a stream of rows into packed tensors."""
