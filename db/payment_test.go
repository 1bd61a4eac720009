package db_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify/verifytest"
)

func TestMoneyOfPaymentsIsNotRewritten(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verifytest.Fill(t, db)
	const (
		jumped = `update machine_instances set state = 'late', came_from = 'suspended', revision = revision + 1
			where machine = 'payment' and key = 'card-1'`
		reopened = `update machine_instances set state = 'created', came_from = 'suspended', revision = revision + 1
			where machine = 'payment' and key = 'card-1'`
	)
	for _, c := range []struct{ dsn, role, kept string }{{db.AllDSN, "", noPrivilege},
		{db.SuperDSN, "set role ledgerd_owner", appendOnly}, {db.SuperDSN, "", appendOnly}} {
		conn := connect(t, c.dsn)
		if c.role != "" {
			do(t, conn, c.role)
		}
		for _, sql := range []string{
			"update payment_transactions set amount = amount + 1",
			"update payment_transactions set transaction_id = 'other'",
			"update payment_transactions set out_trade_no = 'other'",
			"delete from payment_transactions",
			"truncate payment_transactions",
			"delete from payment_notices",
			"update payment_notices set body = ''",
			"truncate payment_notices",
			"delete from payment_notice_names",
			"update payment_notice_names set notify_id = 'other'",
			"truncate payment_notice_names",
		} {
			refused(t, conn, sql, c.kept, "")
		}
		refused(t, conn, jumped, illegalMove, "")
		refused(t, conn, reopened, illegalMove, "")
		refused(t, conn, "update payment_transactions set refunded = amount",
			checkViolated, "payment_transactions_refunds_check")
	}
	conn := connect(t, db.AllDSN)
	for _, sql := range []string{
		"update payment_payments set amount = 1", "update payment_payments set payee = 'me'", "delete " +
			"from payment_payments",
		"update payment_refunds set amount = 1", "update payment_refunds set account = 'me'", "delete " +
			"from payment_refunds",
		"update payment_flags set amount = 1", "update payment_flags set account = 'me'", "delete from payment_flags",
		"delete from payment_gateways", "alter table payment_notices disable trigger all",
		"alter table payment_transactions disable trigger all",
	} {
		refused(t, conn, sql, noPrivilege, "")
	}
}
