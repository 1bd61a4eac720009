package dispatch

import (
	"strings"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// fields are the fields of CreatePayment by their names in errors of gateways.
var fields = map[string]string{"out_trade_no": "out_trade_no", "pay_type": "pay_type", "amount": "order_no",
	"currency": "gateway", "description": "description", "payer": "payer", "payer_ip": "payer_ip",
	"return_url": "return_url", "expires_at": "order_no"}

// invalid returns an error of a gateway's rules as a fault about a field of the request.
func invalid(err error) error {
	name, problem, ok := strings.Cut(err.Error(), ": ")
	if field := fields[name]; ok && field != "" {
		return fault.FieldInvalid.New("%s: %s", field, problem).WithField(field, problem)
	}
	return fault.FieldInvalid.New("gateway: %s", err).WithField("gateway", err.Error())
}
