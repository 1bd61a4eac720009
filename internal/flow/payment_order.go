package flow

import (
	"errors"
	"slices"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// orderPayments are the payments of an order that a command reads, named over successive attempts.
type orderPayments struct {
	listed  bool     // numbers has all payments of the order
	numbers []string // of the payments that earlier attempts read
}

// need names the payments that earlier attempts found. The command names the instance of the order too.
func (s *orderPayments) need(tx *Tx, k payment.OrderKey) {
	if s.listed {
		tx.Payments().WantOfOrder(k)
	}
	for _, number := range s.numbers {
		k := payment.Key{Tenant: k.Tenant, OutTradeNo: number}
		tx.Payments().Want(k)
		tx.Payments().WantMoney(k)
		tx.Machines().Want(paymentInstance(k))
	}
}

// view returns a payment of the order with its state.
func (s *orderPayments) view(tx *Tx, tenant int32, number string) (v payment.View, err error) {
	k := payment.Key{Tenant: tenant, OutTradeNo: number}
	if slices.Contains(s.numbers, number) || tx.Payments().HasMoney(k) && tx.Payments().Wanted(k) != nil &&
		tx.Machines().Wanted(paymentInstance(k)) != nil {
		return tx.viewPayment(k)
	}
	s.numbers = append(s.numbers, number)
	return v, commit.ErrMoreRows
}

// paid returns the payment that has paid the order, or nil. One payment pays an order, also if its machine allows a
// paid order to be paid again.
func (s *orderPayments) paid(tx *Tx, k payment.OrderKey) (*payment.View, error) {
	if !s.listed && !tx.Payments().HasOfOrder(k) {
		s.listed = true
		return nil, commit.ErrMoreRows
	}
	var missing error
	for _, x := range tx.Payments().OfOrder(k) {
		if !x.Paid {
			continue
		}
		v, err := s.view(tx, k.Tenant, x.OutTradeNo)
		switch {
		case errors.Is(err, commit.ErrMoreRows):
			missing = err
		case err != nil:
			return nil, err
		case v.State.State == machine.PaymentSucceeded:
			return &v, nil
		}
	}
	return nil, missing
}
