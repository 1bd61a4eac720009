package ledger

import "fmt"

// A comment line with a URL may be wider than the limit, such as https://example.com/a/very/long/path/to/some/document/page.html
func wide(a, b, c, d, e, f, g, h, i, j, k int) (aaaa, bbbb, cccc, dddd, eeee int, err error) { // want line-width
	fmt.Println("a text of an error, which can be broken into parts like any other line of the program") // want line-width
	return a + b + c + d + e, f + g + h + i + j + k, 0, 0, 0, nil
}

// A struct tag cannot be broken.
type flags struct {
	Tenant string `help:"Name of the tenant whose accounts, messages and orders are shown, in lower-case letters and digits."`
}

func hides(new int) int { // want shadowed-builtin
	len := new + 1 // want shadowed-builtin
	return len
}
