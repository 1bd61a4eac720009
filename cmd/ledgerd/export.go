package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ledgerd/ledgerd/internal/importer/hledger"
)

type exportCmd struct {
	Hledger exportHledgerCmd `cmd:"" help:"Write a journal for hledger."`
}

type exportHledgerCmd struct {
	clientFlags
	Output            string   `short:"o" help:"File to write to; - is stdout." default:"-"`
	Commodity         []string `help:"Write an asset as this commodity, such as '$$=USD'." placeholder:"COMMODITY=ASSET" sep:"none"`
	Costs             bool     `help:"Omit the conversion account of exchanges where hledger can infer the cost."`
	TimeZone          string   `help:"Time zone of the dates, such as Europe/Berlin." default:"UTC"`
	ConversionAccount string   `help:"Account that exchanges go through." default:"equity:conversion"`
}

func (c *exportHledgerCmd) Run(e *env) (err error) {
	commodities, err := hledger.ParseCommodities(c.Commodity)
	if err != nil {
		return err
	}
	zone, err := time.LoadLocation(c.TimeZone)
	if err != nil {
		return fmt.Errorf("--time-zone: %w", err)
	}
	out := e.out
	if c.Output != "-" {
		f, err := os.Create(c.Output)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }() // some file systems report a full disk only on Close
		out = f
	}
	n, err := hledger.Export(e.ctx, hledger.ExportOptions{Commodities: commodities, Conversion: c.ConversionAccount,
		Costs: c.Costs, Zone: zone, Client: c.dial(), Out: out})
	if err == nil {
		fmt.Fprintf(e.errOut, "%d transfers\n", n)
	}
	return err
}
