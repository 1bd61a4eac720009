package ledger

import "fmt"

// A comment line with a URL may be wider than the limit, such as https://example.com/a/very/long/path/to/some/document/page.html
func wide(a, b, c, d, e, f, g, h, i, j, k int) (aaaa, bbbb, cccc, dddd, eeee int, err error) { // want line-width
	fmt.Println("a long text is not broken, since it is found by searching for it, whatever its width")
	return a + b + c + d + e, f + g + h + i + j + k, 0, 0, 0, nil
}

func hides(new int) int { // want shadowed-builtin
	len := new + 1 // want shadowed-builtin
	return len
}
