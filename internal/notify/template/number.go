package template

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"golang.org/x/text/number"
)

// digits formats numbers for a locale. It learns the format from a sample that package number has formatted. Package
// number itself cannot format amounts, because its types have fewer digits.
type digits struct {
	point, group string
	first, next  int // sizes of the last group, and of the groups before it
	zero         rune
}

// learnDigits parses the formatted 123456789.5 from the right: decimal point, last group, the group before.
func learnDigits(tag language.Tag) digits {
	p := message.NewPrinter(tag)
	text := p.Sprint(number.Decimal(123456789.5))
	d := digits{point: ".", zero: '0'}
	five, size := utf8.DecodeLastRuneInString(text)
	d.zero = five - 5
	rest := text[:len(text)-size]
	whole := strings.TrimRightFunc(rest, func(r rune) bool { return !d.is(r) })
	d.point = rest[len(whole):]
	var sizes []int
	n := 0
	for whole != "" {
		r, size := utf8.DecodeLastRuneInString(whole)
		if d.is(r) {
			n++
			whole = whole[:len(whole)-size]
			continue
		}
		left := strings.TrimRightFunc(whole, func(r rune) bool { return !d.is(r) })
		d.group, whole = whole[len(left):], left
		sizes, n = append(sizes, n), 0
	}
	if len(sizes) > 0 {
		d.first, d.next = sizes[0], sizes[len(sizes)-1]
		if len(sizes) > 1 {
			d.next = sizes[1]
		}
	}
	return d
}

func (d digits) is(r rune) bool { return r >= d.zero && r <= d.zero+9 }

// format formats a decimal number, such as -1234.50, with all its digits.
func (d digits) format(decimal string) string {
	sign := ""
	if strings.HasPrefix(decimal, "-") {
		sign, decimal = "-", decimal[1:]
	}
	whole, fraction, has := strings.Cut(decimal, ".")
	var b strings.Builder
	b.WriteString(sign)
	grouped := d.group != ""
	for i := range len(whole) {
		if left := len(whole) - i; i > 0 && grouped && left >= d.first && (left-d.first)%d.next == 0 {
			b.WriteString(d.group)
		}
		b.WriteRune(d.zero + rune(whole[i]-'0'))
	}
	if has {
		b.WriteString(d.point)
		for i := range len(fraction) {
			b.WriteRune(d.zero + rune(fraction[i]-'0'))
		}
	}
	return b.String()
}
