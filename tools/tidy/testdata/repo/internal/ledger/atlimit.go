package ledger

// Twenty lines, the last one included.
const (
	c0  = 0
	c1  = 1
	c2  = 2
	c3  = 3
	c4  = 4
	c5  = 5
	c6  = 6
	c7  = 7
	c8  = 8
	c9  = 9
	c10 = 10
	c11 = 11
	c12 = 12
	c13 = 13
	c14 = 14
)
