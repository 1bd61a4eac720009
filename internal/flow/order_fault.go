package flow

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/machine"
)

// Faults of an order's parts name fields and objects of other domains. These functions rewrite them in the terms of the
// caller's request.

// inElement puts the element of a list of the request before the fields of a fault.
func inElement(err error, list string, n int) error {
	at := fmt.Sprintf("%s[%d]", list, n)
	return fault.In(at+".", err)
}

// inLine is inElement for a reservation of a line.
func inLine(err error, n int) error {
	err = inElement(err, "lines", n)
	if f := fault.Of(err); f != nil {
		f.With("line", n)
	}
	return err
}

// inBalance reports a fault of the order's hold or transfer in the fields of the order.
func inBalance(err error) error {
	return fault.Rename(err, func(path string) string {
		switch path {
		case "from", "postings[0].from":
			return "balance.account"
		case "to", "postings[0].to":
			return "payee"
		}
		return "balance.amount"
	})
}

// inMachine reports a fault of the order's instance in the fields of the order.
func inMachine(err error) error {
	return fault.Rename(err, func(path string) string {
		if path == "timer" {
			return "pay_within"
		}
		return path
	})
}

// inOrder rewrites a fault of the order's instance in the terms of the request: order_no, and for CancelOrder neither
// inputs nor from.
func (c *MoveOrder) inOrder(err error, k machine.Key) error {
	f := fault.Of(err)
	if f == nil || f.Metadata["machine"] != k.Machine || f.Metadata["key"] != k.Key {
		return err
	}
	own := *f
	own.Metadata = maps.Clone(f.Metadata)
	delete(own.Metadata, "key")
	own.Metadata["order_no"] = c.OrderNo
	own.Message = strings.Replace(f.Message, "instance "+k.Key, "order "+c.OrderNo, 1)
	if !c.Cancel {
		return &own
	}
	own.Fields = slices.Clone(f.Fields)
	for i, x := range own.Fields {
		if strings.HasPrefix(x.Path, "inputs.") || x.Path == "from" { // fields that CancelOrder does not have
			own.Fields[i] = fault.Field{Path: "order_no", Description: "must be cancelled with MoveOrder, which has " +
				x.Path}
			if i == 0 {
				own.Message = "order_no: " + own.Fields[i].Description
			}
		}
	}
	return &own
}
