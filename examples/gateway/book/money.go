package book

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// sumScale is greater than the scale of any currency, so that amounts of different scales can be added.
const sumScale = 4

var errAmount = errors.New("not an amount")

// decimals has the currencies whose number of decimals in ISO 4217 is not 2.
var decimals = map[string]int{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0, "UGX": 0,
	"VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3, "CLF": 4, "UYW": 4,
}

// Decimals returns a currency's number of decimals in ISO 4217.
func Decimals(currency string) int {
	if n, ok := decimals[currency]; ok {
		return n
	}
	return 2
}

// Format writes minor units as a decimal number.
func Format(minor int64, scale int) string {
	digits := strconv.FormatInt(minor, 10)
	if scale == 0 {
		return digits
	}
	sign := ""
	if minor < 0 {
		sign, digits = "-", digits[1:]
	}
	if missing := scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	return sign + digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
}

// Parse reads a positive decimal number with at most scale decimals.
func Parse(text string, scale int) (int64, error) {
	whole, fraction, point := strings.Cut(text, ".")
	if whole == "" || (point && fraction == "") || len(fraction) > scale || len(whole) > 12 {
		return 0, fmt.Errorf("%w: %q with %d decimals", errAmount, text, scale)
	}
	digits := whole + fraction + strings.Repeat("0", scale-len(fraction))
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%w: %q", errAmount, text)
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%w: %q", errAmount, text)
	}
	return n, nil
}

// rescale converts an amount to another scale, which must not be smaller.
func rescale(minor int64, from, to int) int64 {
	return minor * int64(math.Pow10(to-from))
}

// sum formats a total in 10^-sumScale of a currency.
func sum(total int64, currency string) string {
	text := Format(total, sumScale)
	for cut := sumScale - Decimals(currency); cut > 0 && text[len(text)-1] == '0'; cut-- {
		text = text[:len(text)-1]
	}
	return strings.TrimSuffix(text, ".")
}
