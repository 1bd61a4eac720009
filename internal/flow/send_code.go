package flow

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

// SendCode sends a verification code. Its answer is a code.Issued, which does not reveal whether a message was sent.
type SendCode struct {
	code.Issue
	Template  template.Name // without a name: the tenant's default for codes, or else the built-in one
	Variables map[string]any
	ClientIP  string

	use     *template.Use
	message notify.SendCommand
}

// Need names the code, the template and the message.
func (c *SendCode) Need(tx *Tx) {
	c.Issue.Need(tx.Codes())
	name := c.Template
	if name.Name == "" {
		name.Name = code.DefaultTemplate
	}
	c.use = tx.Templates().Want(name)
	never := time.Duration(0)
	c.message = notify.SendCommand{Caller: c.Caller, Params: notify.Params{
		Channel: c.Channel, Recipient: c.Recipient, Render: c.render, BusinessType: "code." +
			c.Type, Priority: notify.High, GiveUpAfter: c.Life,
		ContentLife: c.Life, OnUnknown: notify.Never, RepeatWindow: &never, ClientIP: c.ClientIP, Code: true}}
	c.message.Need(tx.Messages())
}

// Apply sends the code, or (Suppress) only counts it like a sent one. Returns faults CODE_TRIES_SPENT, CODE_TOO_SOON,
// CODE_TOO_MANY, CODE_TEMPLATE_UNFIT, NOTIFY_LIMITED, and those of the template.
func (c *SendCode) Apply(tx *Tx) (any, error) {
	if err := c.Allowed(tx.Codes()); err != nil {
		return nil, err
	}
	if c.Suppress {
		// An error of the template must not reveal whether the recipient is suppressed.
		if _, err := c.render(); err != nil {
			return nil, err
		}
		if err := c.message.CountOnly(tx.Messages()); err != nil {
			return nil, err
		}
		return c.Done(tx.Codes(), 0), nil
	}
	answer, err := c.message.Apply(tx.Messages())
	if err != nil {
		return nil, err
	}
	return c.Done(tx.Codes(), answer.(*notify.Message).ID), nil
}

// render renders the message.
func (c *SendCode) render() (notify.Rendered, error) {
	d, offered := c.use.Definition(), code.Variables(c.Code, c.Life)
	var r template.Rendered
	var err error
	if d == nil && c.Template.Name == "" && len(c.Variables) == 0 {
		r, err = code.BuiltIn(c.Channel, c.Template.Locale, offered)
	} else {
		if r, err = c.use.Render(c.Variables, offered); err == nil {
			err = code.Fit(d)
		}
	}
	if err != nil {
		return notify.Rendered{}, err
	}
	return notify.Rendered{Content: r.Content, Template: r.Template, Locale: r.Locale, OnUnknown: notify.Never}, nil
}

// Code adapts a command on codes to Tx.
func Code(c commit.Command[*code.Tx]) Command { return on(codes, c) }
