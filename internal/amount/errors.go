package amount

import "errors"

// The errors of this package. Errors that are returned have the offending value appended if it is short, so compare
// with errors.Is. When several apply, a parser reports the first in this order: ErrTooLong, ErrSyntax,
// ErrTooManyDigits, ErrTooManyDecimals.
var (
	// ErrTooLong means the text has more than MaxTextLen bytes. The parser checks the length first, and the error does
	// not contain the text.
	ErrTooLong = errors.New("amount: text is too long")

	// ErrSyntax means the text does not follow the grammar.
	ErrSyntax = errors.New("amount: text is not a plain decimal number")

	// ErrTooManyDigits means the text is well formed but needs more than MaxDigits significant digits.
	ErrTooManyDigits = errors.New("amount: more than 38 significant digits")

	// ErrTooManyDecimals means the text is well formed but its fraction needs more than MaxScale digits.
	ErrTooManyDecimals = errors.New("amount: more than 18 decimals")

	// ErrTooPrecise means a decimal has a fraction smaller than one minor unit
	// of the asset. Rounding it would create or destroy money.
	ErrTooPrecise = errors.New("amount: more decimals than the asset has")

	// ErrOverflow means a value would have more than MaxDigits digits.
	ErrOverflow = errors.New("amount: value has more than 38 digits")

	// ErrNotInteger means a numeric from the database has a fraction, or is NaN or infinite. The schema stores
	// numeric(38,0), so the cause is a wrong query or a damaged column, never a caller.
	ErrNotInteger = errors.New("amount: numeric is not an integer")
)
