package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

type limitCmd struct {
	DatabaseURL string `required:"" help:"URL of the Postgres database with the limits, with a login role that is a member of ledgerd_admin." env:"LEDGERD_ADMIN_DATABASE_URL,DATABASE_URL"`

	Set    limitSetCmd    `cmd:"" help:"Create or replace a limit on a tenant's messages. Servers apply it within a second."`
	List   limitListCmd   `cmd:"" help:"List a tenant's limits."`
	Delete limitDeleteCmd `cmd:"" help:"Remove a limit."`
}

// limitName identifies a limit of a tenant.
type limitName struct {
	tenantFlag
	Channel string        `arg:"" help:"sms, email, push, webhook; code: verification codes only; '*': all channels together."`
	Scope   string        `arg:"" help:"Unit of counting: tenant (one count for the tenant), channel, recipient, ip (the client_ip of calls; IPv6 by its first 64 bits), prefix (phone numbers without their last four digits)."`
	Window  time.Duration `arg:"" help:"Length of the sliding window, in whole seconds, 1s to 744h."`
}

func (n *limitName) limit(most int32) notify.Limit {
	return notify.Limit{Channel: send.Channel(n.Channel), Scope: n.Scope, Window: n.Window, MaxMessages: most}
}

type limitSetCmd struct {
	limitName
	Most int32 `arg:"" help:"Number of messages accepted in any window. 0 refuses all messages."`
}

func (c *limitSetCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Limit.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		return asFlags(access.Administer(pool).Change(e.ctx, tenant,
			func(ctx context.Context, tx pgx.Tx) (audit.Change, error) {
				return notify.PutLimit(ctx, tx, tenant, c.limit(c.Most))
			}))
	})
}

type limitListCmd struct{ tenantFlag }

func (c *limitListCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Limit.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		limits, err := notify.ListLimits(e.ctx, pool, tenant)
		if err != nil {
			return err
		}
		return e.table("CHANNEL\tSCOPE\tWINDOW\tMOST", func(w io.Writer) {
			for _, l := range limits {
				fmt.Fprintf(w, "%s\t%s\t%v\t%d\n", l.Channel, l.Scope, l.Window, l.MaxMessages)
			}
		})
	})
}

type limitDeleteCmd struct{ limitName }

func (c *limitDeleteCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Limit.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		admin := access.Administer(pool)
		return asFlags(admin.Change(e.ctx, tenant, func(ctx context.Context, tx pgx.Tx) (audit.Change, error) {
			x, err := notify.DeleteLimit(ctx, tx, tenant, c.limit(0))
			if err == nil && x.Before == nil {
				err = fmt.Errorf("tenant %s has no such limit", c.Tenant)
			}
			return x, err
		}))
	})
}
