package amount

import (
	"errors"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Reasons of amounts that an asset cannot have.
var (
	TooPrecise = fault.Register(fault.Reason{Name: "AMOUNT_TOO_PRECISE", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The amount has more decimals than its asset. Nothing is rounded."})
	TooLarge = fault.Register(fault.Reason{Name: "AMOUNT_TOO_LARGE", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The amount, or the balance that it would make, has more than 38 digits in minor units."})
)

// Refused converts an error of Decimal.Minor to a fault.
func Refused(err error, d Decimal, asset string, scale uint8) *fault.Fault {
	if errors.Is(err, ErrTooPrecise) {
		return TooPrecise.New("%s has more decimals than %s, which has %d", d, asset, scale).With("asset", asset).
			With("scale", scale)
	}
	return TooLarge.New("%s %s has more than 38 digits", d, asset).With("asset", asset)
}
