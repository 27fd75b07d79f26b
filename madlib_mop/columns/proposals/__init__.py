"""What is done with each column: the table that a person reads and edits, how it is proposed, and its checks."""
