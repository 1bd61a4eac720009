package main

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/provider"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// notifyCmds are the commands about messages to people and systems.
type notifyCmds struct {
	Test       notifyTestCmd       `cmd:"" help:"Send a test message by the providers of a file, without a server or database."`
	DropProofs notifyDropProofsCmd `cmd:"" help:"Drop the proofs of old months for good: the records of messages and of their events."`
}

type notifyDropProofsCmd struct {
	Months      int32  `required:"" help:"Number of full months to keep, at least 4."`
	DatabaseURL string `required:"" help:"URL of the Postgres database with the messages, with a role that is a member of ledgerd_owner (the server's role is not)." env:"DATABASE_URL"`
}

func (c *notifyDropProofsCmd) Run(e *env) error {
	pool, err := e.open(c.DatabaseURL, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	dropped, err := notify.DropProofs(e.ctx, pool, c.Months)
	fmt.Fprintf(e.out, "%d partitions were dropped\n", dropped)
	return err
}

type notifyTestCmd struct {
	Notify   string            `required:"" help:"YAML file of providers (docs/providers.md)." type:"existingfile" env:"LEDGERD_NOTIFY"`
	Channel  string            `required:"" enum:"email,sms,push" help:"Channel: email, sms or push."`
	To       string            `required:"" help:"E-mail address, phone number such as +8613812345678, or device token."`
	Tenant   string            `help:"Tenant whose settings are used."`
	Text     string            `help:"Text of the message." default:"This is a test message from ledgerd."`
	Template map[string]string `help:"Template of a provider, such as aliyun=SMS_12345." placeholder:"PROVIDER=TEMPLATE"`
	Param    []string          `help:"Variable of the template, such as code=123456. Repeat the flag for more, in the template's order." sep:"none" placeholder:"NAME=VALUE"`
}

func (c *notifyTestCmd) Run(e *env) error {
	f, err := provider.ReadFile(c.Notify)
	if err != nil {
		return err
	}
	m := &send.Message{Key: "test-" + rand.Text(), Channel: send.Channel(c.Channel), Attempt: 1, Recipient: c.To,
		Park: true, Content: send.Content{Text: c.Text, Template: c.Template}}
	if m.Channel != send.SMS {
		m.Content.Subject = "Trial message"
	}
	if m.Content.Params, err = params(c.Param); err != nil {
		return err
	}
	// Without a database any numbers work: 0 belongs to no tenant.
	names := []string{""}
	number := func(name string) (int32, error) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		return int32(slices.Index(names, name)), nil
	}
	m.Tenant, _ = number(c.Tenant)
	senders, err := f.Build(&provider.Env{Tenant: number, Log: e.log})
	if err != nil {
		return err
	}
	defer func() { _ = senders.Close() }()
	sender := senders.ByChannel[m.Channel]
	if sender == nil {
		return fmt.Errorf("%s has no provider for %s", c.Notify, c.Channel)
	}
	start := time.Now()
	receipt, err := sender.Send(e.ctx, m)
	took := time.Since(start).Round(time.Millisecond)
	if err != nil {
		failure := send.Failed(err)
		if failure.Provider == "" {
			return fmt.Errorf("no provider was tried: %w", failure)
		}
		return fmt.Errorf("%s, after %v: %w", failure.Provider, took, failure)
	}
	fmt.Fprintf(e.out, "%s accepted the message in %v, with the id %q\n", receipt.Provider, took,
		receipt.ProviderMessageID)
	return nil
}

// params parses variables in the form NAME=VALUE.
func params(written []string) ([]send.Param, error) {
	var all []send.Param
	for _, w := range written {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			return nil, fmt.Errorf("--param %s: must be NAME=VALUE", w)
		}
		all = append(all, send.Param{Name: name, Value: value})
	}
	return all, nil
}
