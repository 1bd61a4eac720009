package ledger

// The test allows 20 lines a file and 5 lines a function.
func atTheLimit() int {
	a := 1
	b := 2
	return a + b
}

func tooLong() int { // want function-length
	a := 1
	b := 2
	c := 3
	return a + b + c
}

var literal = func() int { // want function-length
	a := 1
	b := 2
	c := 3
	return a + b + c // want file-length
}
