package main

import (
	"os"

	"github.com/ledgerd/ledgerd/internal/importer/settlement"
)

type reconcileCmd struct {
	Gateway reconcileGatewayCmd `cmd:"" help:"Compare settlement files of a payment gateway with its transactions and refunds."`
}

type reconcileGatewayCmd struct {
	clientFlags
	File        []string `arg:"" help:"CSV files of the gateway; - is stdin."`
	Mapping     string   `required:"" type:"existingfile" help:"YAML file that maps the columns (docs/reconciling.md)."`
	Gateway     string   `help:"Name of the gateway. Default: that of the mapping."`
	Start       string   `help:"Start of the period: a date or a time. Default: the first day of the files."`
	End         string   `help:"End of the period, exclusive. Default: the day after the last day of the files."`
	FeeAccount  string   `help:"Account that pays the gateway's fees. Default: that of the mapping."`
	BankAccount string   `help:"Account that gets the payouts. Default: that of the mapping."`
	Post        bool     `help:"Post fees and payouts that the ledger does not have."`
	All         bool     `help:"Also report the lines that match."`
	JSON        bool     `name:"json" help:"Write the report as JSON."`
}

func (c *reconcileGatewayCmd) Run(e *env) error {
	return settlement.Run(e.ctx, settlement.Options{Paths: c.File, Mapping: c.Mapping, Gateway: c.Gateway,
		Accounts: settlement.Accounts{Fee: c.FeeAccount, Bank: c.BankAccount}, Start: c.Start, End: c.End, Post: c.Post,
		All: c.All, JSON: c.JSON, Client: c.dial(), Stdin: os.Stdin, Out: e.out, Err: e.errOut})
}
