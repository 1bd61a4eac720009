package main

import (
	"errors"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
)

type secretCmd struct {
	DatabaseURL string `required:"" help:"URL of the Postgres database, with the role that migrates." env:"DATABASE_URL"`
	SecretsFile string `help:"File with the master keys, one a line, the newest first. Alternatively set LEDGERD_SECRET." type:"path" env:"LEDGERD_SECRETS_FILE"`

	Reseal resealCmd `cmd:"" help:"Seal the root secret of DATABASE_URL with the newest master key, so that the others can be removed."`
}

type resealCmd struct {
	Check bool `help:"Change nothing; fail if an older master key is still needed."`
}

func (c *resealCmd) Run(e *env, all *cli) error {
	m, err := readMaster(all.Secret.SecretsFile)
	if err == nil {
		err = m.Check()
	}
	if err != nil {
		return err
	}
	pool, err := e.open(all.Secret.DatabaseURL, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	do := secret.Reseal
	if c.Check {
		do = secret.Check
	}
	sealing, err := do(e.ctx, pool, m)
	switch {
	case err != nil:
		return err
	case sealing.KeyID == "":
		fmt.Fprintln(e.out, "there is no root secret yet: the first server will create it")
	case sealing.Newest:
		fmt.Fprintf(e.out, "sealed with the newest master key, %s: no other is needed\n", sealing.KeyID)
	default:
		fmt.Fprintf(e.out, "sealed with the master key %s; the newest is %s\n", sealing.KeyID, m.IDs()[0])
		return errors.New("an older master key is needed: run ledgerd secret reseal")
	}
	return nil
}
