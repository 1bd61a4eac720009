package dispatch

import (
	"strings"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// fields are the fields of CreatePayment by their names in errors of gateways, with a subject for the message.
var fields = map[string]struct{ name, what string }{"out_trade_no": {"out_trade_no", ""}, "pay_type": {"pay_type", ""},
	"amount": {"order_no", "the amount of the order "}, "currency": {"gateway", "the currency of the order "},
	"description": {"description", ""}, "payer": {"payer", ""}, "payer_ip": {"payer_ip", ""},
	"return_url": {"return_url", ""}, "expires_at": {"order_no", "the time to pay of the order "}}

// invalid returns an error of a gateway's rules as a fault about a field of the request.
func invalid(err error) error {
	name, problem, ok := strings.Cut(err.Error(), ": ")
	if f := fields[name]; ok && f.name != "" {
		problem = f.what + problem
		return fault.InvalidField(f.name, "%s", problem)
	}
	return fault.FieldInvalid.New("gateway: %s", err).WithField("gateway", err.Error())
}
