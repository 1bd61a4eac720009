package ledger

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/paging"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Assets lists a tenant's assets by code.
func (r *Reader) Assets(ctx context.Context, tenant int32) ([]Asset, error) {
	rows, err := q.AssetList(ctx, r.one(), tenant)
	assets := make([]Asset, 0, len(rows))
	for _, a := range rows {
		assets = append(assets, Asset{Tenant: tenant, Code: a.Code, Scale: uint8(a.Scale)})
	}
	return assets, err
}

// Account returns the current account with its metadata. Returns fault ACCOUNT_NOT_FOUND.
func (r *Reader) Account(ctx context.Context, tenant int32, code, asset string) (*Account, error) {
	row, err := q.AccountRead(ctx, r.one(), db.AccountReadParams{TenantID: tenant, Code: code, Asset: asset})
	if err != nil {
		return nil, orNotFound(err, tenant, code, asset)
	}
	a := accountOf(tenant, db.AccountPageRow(row))
	return &a, nil
}

// Accounts lists accounts whose codes match a pattern, ordered by code and asset; an empty asset matches all
// assets. Returns faults FIELD_INVALID, PAGE_TOKEN_INVALID.
func (r *Reader) Accounts(ctx context.Context, tenant int32, codes, asset string,
	page Page) ([]Account, string, error) {
	p, err := parsePattern(codes)
	if err != nil {
		return nil, "", err
	}
	l := paging.Of("accounts", tenant, codes, asset)
	code, last, err := afterAccount(l, page.Token, p)
	if err != nil {
		return nil, "", err
	}
	size := page.size()
	var rows []db.AccountPageRow
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) (err error) {
		rows, err = q.AccountPage(ctx, d,
			db.AccountPageParams{TenantID: tenant, AfterCode: code, AfterAsset: last, High: p.high,
				Match: p.match, OnlyAsset: asset, Count: int32(size + 1)})
		return err
	})
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(rows) > size {
		rows = rows[:size]
		next = l.Token(rows[size-1].Code, rows[size-1].Asset)
	}
	accounts := make([]Account, 0, len(rows))
	for _, row := range rows {
		accounts = append(accounts, accountOf(tenant, row))
	}
	return accounts, next, nil
}

// afterAccount is the code and asset after which a page begins. The first page begins before the pattern's
// range, because no asset is empty.
func afterAccount(l paging.List, token string, p pattern) (code, asset string, err error) {
	place, err := l.After(token, 2)
	if place == nil || err != nil || place[0] < p.low {
		return p.low, "", err
	}
	return place[0], place[1], nil
}

func accountOf(tenant int32, r db.AccountPageRow) Account {
	return Account{AccountKey: AccountKey{tenant, r.Code, r.Asset}, ID: r.AccountID, Scale: uint8(r.Scale),
		Kind:  r.Kind,
		State: r.State, Balance: r.Balance, Held: r.Held, Min: r.MinBalance, Max: r.MaxBalance, Version: r.Version,
		LastEntryAt: pg.OrZero(r.LastEntryAt), NextExpiryAt: pg.OrZero(r.NextExpiryAt),
		Metadata:  pg.Metadata(r.Metadata),
		CreatedAt: r.CreatedAt}
}

// orNotFound converts pgx.ErrNoRows of an account query to its fault.
func orNotFound(err error, tenant int32, code, asset string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return notFound(&Account{AccountKey: AccountKey{tenant, code, asset}}, "account")
	}
	return err
}

// BalanceSum is the sum over accounts of one asset.
type BalanceSum struct {
	Asset         string
	Scale         uint8
	Accounts      int64
	Balance, Held amount.Total
}

// BalanceSums sums the accounts whose codes match a pattern, by asset; an empty asset matches all assets.
// Returns fault FIELD_INVALID.
func (r *Reader) BalanceSums(ctx context.Context, tenant int32, codes, asset string) ([]BalanceSum, error) {
	p, err := parsePattern(codes)
	if err != nil {
		return nil, err
	}
	var rows []db.BalanceSumRow
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) (err error) {
		rows, err = q.BalanceSum(ctx, d, db.BalanceSumParams{TenantID: tenant, Low: p.low, High: p.high, Match: p.match,
			OnlyAsset: asset})
		return err
	})
	if err != nil {
		return nil, err
	}
	sums := make([]BalanceSum, 0, len(rows))
	for _, row := range rows {
		sums = append(sums, BalanceSum{Asset: row.Asset, Scale: uint8(row.Scale), Accounts: row.Accounts,
			Balance: amount.Total(row.Balance), Held: amount.Total(row.Held)})
	}
	return sums, nil
}

// TrialBalance is a page of accounts with their balances, and the totals over all pages.
type TrialBalance struct {
	Lines  []TrialBalanceLine
	Totals []TrialBalanceTotal
	Next   string // page token
}

// TrialBalanceLine is one account: a negative balance is a debit, a positive one a credit.
type TrialBalanceLine struct {
	Code, Asset string
	Scale       uint8
	Kind        string
	Balance     amount.Int
}

// TrialBalanceTotal is the sum of debits and the sum of credits in one asset, neither negative.
type TrialBalanceTotal struct {
	Asset         string
	Scale         uint8
	Debit, Credit amount.Total
}

// TrialBalance lists the balances of accounts whose codes match a pattern, ordered by code and asset, with
// totals; an empty asset matches all assets. Each page computes the totals at its own time. Returns faults
// FIELD_INVALID, PAGE_TOKEN_INVALID.
func (r *Reader) TrialBalance(ctx context.Context, tenant int32, codes, asset string,
	page Page) (*TrialBalance, error) {
	p, err := parsePattern(codes)
	if err != nil {
		return nil, err
	}
	l := paging.Of("trial_balance", tenant, codes, asset)
	code, last, err := afterAccount(l, page.Token, p)
	if err != nil {
		return nil, err
	}
	size := page.size()
	var rows []db.TrialBalancePageRow
	var totals []db.TrialBalanceTotalRow
	err = pg.Snapshot(ctx, r.pool, func(d pg.DB) (err error) {
		rows, err = q.TrialBalancePage(ctx, d,
			db.TrialBalancePageParams{TenantID: tenant, AfterCode: code, AfterAsset: last, High: p.high,
				Match: p.match, OnlyAsset: asset, Count: int32(size + 1)})
		if err != nil {
			return err
		}
		totals, err = q.TrialBalanceTotal(ctx, d, db.TrialBalanceTotalParams{TenantID: tenant, Low: p.low, High: p.high,
			Match: p.match, OnlyAsset: asset})
		return err
	})
	if err != nil {
		return nil, err
	}
	b := &TrialBalance{}
	if len(rows) > size {
		rows = rows[:size]
		b.Next = l.Token(rows[size-1].Code, rows[size-1].Asset)
	}
	for _, row := range rows {
		b.Lines = append(b.Lines, TrialBalanceLine{row.Code, row.Asset, uint8(row.Scale), row.Kind, row.Balance})
	}
	for _, row := range totals {
		b.Totals = append(b.Totals, TrialBalanceTotal{row.Asset, uint8(row.Scale), amount.Total(row.Debit),
			amount.Total(row.Credit)})
	}
	return b, nil
}
