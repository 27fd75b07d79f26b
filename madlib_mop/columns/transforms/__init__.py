"""How the values of one kind of column become units: arithmetic on arrays, without column names."""
