package main

import (
	"os"

	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/importer/csvfile"
	"github.com/ledgerd/ledgerd/internal/importer/hledger"
)

type importCmd struct {
	CSV     importCSVCmd     `cmd:"" name:"csv" help:"Import movements of accounts from a CSV file, by a mapping file."`
	Hledger importHledgerCmd `cmd:"" help:"Import a journal of hledger, or the output of hledger print -O json."`
}

// clientFlags are the flags of commands that call a server.
type clientFlags struct {
	Server string `help:"URL of the server." default:"http://127.0.0.1:8080" env:"LEDGERD_SERVER"`
	APIKey string `help:"API key. A server started by ledgerd dev needs none." env:"LEDGERD_API_KEY"`
}

func (f *clientFlags) dial() *importer.Client { return importer.Dial(f.Server, f.APIKey) }

type importCSVCmd struct {
	clientFlags
	File      string `arg:"" help:"CSV file; - is stdin."`
	Mapping   string `required:"" type:"existingfile" help:"YAML file that maps the columns (docs/importing.md)."`
	Report    string `help:"Write movements whose balance differs from the bank's to this CSV file."`
	KeepGoing bool   `help:"Skip bad and refused rows instead of stopping. They are printed, and the exit code is 1."`
}

func (c *importCSVCmd) Run(e *env) error {
	return csvfile.Run(e.ctx, csvfile.Options{Path: c.File, Mapping: c.Mapping, Report: c.Report,
		KeepGoing: c.KeepGoing, Client: c.dial(), Stdin: os.Stdin, Out: e.out, Err: e.errOut})
}

type importHledgerCmd struct {
	clientFlags
	File              string   `arg:"" help:"A .json file, a journal (read by hledger, which must be installed), or - for JSON from stdin."`
	Name              string   `help:"Name of the journal, a part of every biz_no. Default: the file's name without its extension."`
	Commodity         []string `help:"Import a commodity as this asset, such as '$$=USD'." placeholder:"COMMODITY=ASSET" sep:"none"`
	ConversionAccount string   `help:"Account that exchanges go through." default:"equity:conversion"`
	VirtualAccount    string   `help:"Account that balances unbalanced virtual postings. Without it they are refused."`
	IDTag             string   `help:"Tag whose value identifies a transaction, instead of its content." default:"biz_no" name:"id-tag"`
	Part              bool     `help:"The input is a part of the journal, so transactions imported before may be missing from it. Edited transactions are not detected, and are imported a second time."`
	KeepGoing         bool     `help:"Skip unsupported and refused transactions instead of stopping. They are printed, and the exit code is 1."`
}

func (c *importHledgerCmd) Run(e *env) error {
	commodities, err := hledger.ParseCommodities(c.Commodity)
	if err != nil {
		return err
	}
	return hledger.Import(e.ctx, hledger.ImportOptions{Path: c.File, Name: c.Name, Commodities: commodities,
		Conversion: c.ConversionAccount, Virtual: c.VirtualAccount, IDTag: c.IDTag, Part: c.Part,
		KeepGoing: c.KeepGoing, Client: c.dial(), Stdin: os.Stdin, Out: e.out, Err: e.errOut})
}
