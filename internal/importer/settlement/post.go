package settlement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// Types of the transfers.
const (
	feeType    = "gateway-fee"
	payoutType = "gateway-payout"
)

// transfer is a transfer for a fee or payout of a line.
type transfer struct {
	line     *line
	subject  string
	kind     string // its type
	bizNo    string
	account  string         // of fees, or at the bank
	asset    string         // of the amount
	currency string         // of the amount, as the file says
	amount   amount.Decimal // positive: the account receives it; negative: the account pays it
	found    *posting       // of an earlier run; nil: none
	wrong    string         // why it cannot be posted
}

// plan derives the transfers from the lines. It omits fees of payments and refunds that are not in the books.
func (c *comparison) plan(accounts *Accounts) (all []*transfer) {
	for _, l := range c.lines {
		wanted := c.matched[l] || l.kind == fee || l.kind == payout || l.kind == payoutReversal
		if accounts.Fee != "" && wanted && !(l.pending && (l.kind == payout || l.kind == payoutReversal)) {
			all = append(all, &transfer{line: l, subject: "fee", kind: feeType, account: accounts.Fee, amount: l.fee,
				bizNo: "fee/" + c.gateway.GetGateway() + "/" + l.key()})
		}
		if accounts.Bank == "" || l.kind != payout && l.kind != payoutReversal || l.failed {
			continue
		}
		if l.pending {
			f := l.finding(Pending, "the payout is not posted before it is paid")
			c.add(f)
			continue
		}
		t := &transfer{line: l, subject: string(l.kind), kind: payoutType, account: accounts.Bank,
			amount: l.settledAmount, bizNo: "payout/" + c.gateway.GetGateway() + "/" + l.key()}
		if l.kind == payoutReversal {
			t.amount = neg(t.amount)
		}
		all = append(all, t)
	}
	for _, t := range all {
		t.currency = t.line.settledCurrency
		t.asset = c.asset(t.currency)
	}
	return all
}

// read finds the transfers that earlier runs posted, and those that cannot be posted. It drops transfers of zero.
func (c *comparison) read(ctx context.Context, all []*transfer) ([]*transfer, error) {
	scales := map[string]int32{}
	r, err := importer.Call(ctx, c.client, "", c.client.Ledger.ListAssets, &ledgerv1.ListAssetsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list the assets: %w", err)
	}
	for _, a := range r.GetAssets() {
		scales[a.GetCode()] = a.GetScale()
	}
	posted := map[string]posting{}
	for _, on := range accountsOf(all) {
		if _, ok := scales[on.asset]; !ok {
			continue
		}
		if err := c.posted(ctx, on.account, on.asset, on.kind, c.first().Add(-day), posted); err != nil {
			return nil, err
		}
	}
	all = slices.DeleteFunc(all, func(t *transfer) bool {
		if p, ok := posted[t.bizNo]; ok {
			t.found = &p
		}
		return t.found == nil && t.amount.Coef.IsZero()
	})
	for _, t := range all {
		scale, ok := scales[t.asset]
		if _, err := t.amount.Minor(uint8(scale)); !ok {
			t.wrong = "the ledger has no asset " + t.asset
		} else if err != nil {
			t.wrong = fmt.Sprintf("%s has more decimals than %s, which has %d", t.amount, t.asset, scale)
		} else if t.account == c.gateway.GetClearing() {
			t.wrong = "its account is the clearing account"
		}
	}
	return all, nil
}

// first is the earliest time of a line.
func (c *comparison) first() time.Time {
	at := c.start
	for _, l := range c.lines {
		if l.at.Before(at) {
			at = l.at
		}
	}
	return at
}

type account struct{ account, asset, kind string }

func accountsOf(all []*transfer) (list []account) {
	seen := map[account]bool{}
	for _, t := range all {
		a := account{t.account, t.asset, t.kind}
		if !seen[a] {
			seen[a] = true
			list = append(list, a)
		}
	}
	return list
}

// differs reports whether the ledger has another amount.
func (t *transfer) differs() bool {
	n, err := amount.ParseDecimal(t.found.amount)
	return err != nil || n != t.amount || t.found.asset != t.asset
}

func (t *transfer) finding(r Result, details ...string) *Finding {
	f := t.line.finding(r, details...)
	f.Subject, f.BizNo, f.Gateway, f.Currency = t.subject, t.bizNo, abs(t.amount).String(), t.currency
	if t.subject == "fee" {
		f.Gateway = t.amount.String()
	}
	if t.found != nil {
		f.Ledgerd = t.found.amount
	}
	return f
}

// compareTransfers adds a finding for each transfer: whether the ledger has it.
func (c *comparison) compareTransfers(all []*transfer) {
	for _, t := range all {
		switch {
		case t.found == nil && t.wrong != "":
			c.add(t.finding(NotPosted, t.wrong))
		case t.found == nil:
			c.add(t.finding(NotPosted))
		case t.differs():
			c.add(t.finding(FeeDiffers))
		default:
			c.add(t.finding(Posted))
		}
	}
}

// checkPosting returns an error, before any transfer is sent, if the ledger cannot represent an amount or lacks an
// account.
func (c *comparison) checkPosting(ctx context.Context, all []*transfer) error {
	var problems []error
	for _, t := range all {
		if t.found == nil && t.wrong != "" && len(problems) < importer.MostProblems {
			problems = append(problems, fmt.Errorf("%s, line %d: %s: %s", t.line.file, t.line.number, t.bizNo, t.wrong))
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("%w\nnothing was posted", errors.Join(problems...))
	}
	clearing := c.gateway.GetClearing()
	for _, on := range accountsOf(all) {
		there := false
		if err := c.client.Accounts(ctx, clearing, on.asset, func(a *ledgerv1.Account) {
			there = there || a.GetCode() == clearing
		}); err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("the clearing account %s has no %s: nothing was posted", clearing, on.asset)
		}
	}
	return nil
}

// post sends the transfers that the ledger does not have. The others count as there already.
func (c *comparison) post(ctx context.Context, all []*transfer, hash string, o *Options) (*importer.Sender[*transfer],
	error) {
	progress := importer.NewProgress(o.Err, len(all))
	defer progress.End()
	s := &importer.Sender[*transfer]{Client: c.client, File: hash, Unique: true, KeepGoing: true, Progress: progress,
		Log: &importer.Problems{W: o.Err, Progress: progress}}
	s.Done = func(t *transfer, out importer.Outcome) {
		if t.found != nil {
			return
		}
		result := NotPosted
		if out == importer.Landed || out == importer.Existed {
			result = Posted
		}
		f := t.finding(result)
		if result == Posted {
			f.Ledgerd = f.Gateway
		} else {
			f.Detail = "the ledger refuses it"
		}
		c.add(f)
	}
	for _, t := range all {
		if t.found != nil {
			if t.differs() {
				c.add(t.finding(FeeDiffers))
				continue
			}
			c.add(t.finding(Posted))
			s.Skip(t)
			continue
		}
		s.Need(t.newAccount())
		if err := s.Add(ctx, importer.Item[*transfer]{Transfer: c.request(t), From: t,
			Place: importer.Place{Line: t.line.number}}); err != nil {
			return s, err
		}
	}
	return s, s.Flush(ctx)
}

func (t *transfer) newAccount() *ledgerv1.NewAccount {
	a := &ledgerv1.NewAccount{Code: t.account, Asset: t.asset, Kind: ledgerv1.AccountKind_ACCOUNT_KIND_EXPENSE,
		Unbounded: true}
	if t.kind == payoutType {
		a.Kind = ledgerv1.AccountKind_ACCOUNT_KIND_ASSET
	}
	return a
}

// request returns the request for a transfer. It depends on the line alone, not on its file or place, so that another
// file with the same line makes the same transfer.
func (c *comparison) request(t *transfer) *ledgerv1.TransferRequest {
	p := &ledgerv1.Posting{From: c.gateway.GetClearing(), To: t.account, Asset: t.asset, Amount: abs(t.amount).String()}
	if t.amount.Coef.Sign() < 0 {
		p.From, p.To = p.To, p.From
	}
	metadata := map[string]string{"gateway": c.gateway.GetGateway()}
	for name, v := range map[string]string{"transaction_id": t.line.transactionID, "refund_no": t.line.refundNo,
		"refund_id": t.line.refundID} {
		if v != "" {
			metadata[name] = v
		}
	}
	return &ledgerv1.TransferRequest{BizNo: t.bizNo, Type: t.kind, Postings: []*ledgerv1.Posting{p}, Metadata: metadata,
		EffectiveTime: timestamppb.New(t.line.at)}
}
