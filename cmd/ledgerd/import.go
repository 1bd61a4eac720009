package main

import (
	"os"

	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/importer/csvfile"
	"github.com/ledgerd/ledgerd/internal/importer/hledger"
)

type importCmd struct {
	CSV     importCSVCmd     `cmd:"" name:"csv" help:"Movements of accounts from CSV, by a mapping file."`
	Hledger importHledgerCmd `cmd:"" help:"A journal of hledger, or what its print -O json writes."`
}

// clientFlags are what commands share that call a server.
type clientFlags struct {
	Server string `help:"The server to call." default:"http://127.0.0.1:8080" env:"LEDGERD_SERVER"`
	APIKey string `help:"API key; dev needs none." env:"LEDGERD_API_KEY"`
}

func (f *clientFlags) dial() *importer.Client { return importer.Dial(f.Server, f.APIKey) }

type importCSVCmd struct {
	clientFlags
	File      string `arg:"" help:"The file; - is stdin."`
	Mapping   string `required:"" type:"existingfile" help:"What the columns mean: YAML, see docs/importing.md."`
	Report    string `help:"Write the movements whose balance differs from the bank's to this CSV file."`
	KeepGoing bool   `help:"Skip bad rows, and go on behind refused ones, instead of stopping. All are printed, and the exit code tells."`
}

func (c *importCSVCmd) Run(e *env) error {
	return csvfile.Run(e.ctx, csvfile.Options{Path: c.File, Mapping: c.Mapping, Report: c.Report, KeepGoing: c.KeepGoing,
		Client: c.dial(), Stdin: os.Stdin, Out: e.out, Err: e.errOut})
}

type importHledgerCmd struct {
	clientFlags
	File              string   `arg:"" help:"A .json file, a journal (which hledger must be there to read), or - for JSON from stdin."`
	Name              string   `help:"Name of the journal in every biz_no. Default: the file's name without its ending."`
	Commodity         []string `help:"What asset a commodity is: '$$=USD'." placeholder:"COMMODITY=ASSET" sep:"none"`
	ConversionAccount string   `help:"Account that exchanged commodities go through." default:"equity:conversion"`
	VirtualAccount    string   `help:"Account that balances (virtual) postings, which are refused without."`
	IDTag             string   `help:"Tag whose value identifies a transaction instead of its content." default:"biz_no" name:"id-tag"`
	Part              bool     `help:"The input is a part of the journal: what was imported before may be missing from it. Edited transactions are not noticed, and come into the ledger a second time."`
	KeepGoing         bool     `help:"Skip transactions that cannot be in the ledger, and go on behind refused ones, instead of stopping. All are printed, and the exit code tells."`
}

func (c *importHledgerCmd) Run(e *env) error {
	commodities, err := hledger.ParseCommodities(c.Commodity)
	if err != nil {
		return err
	}
	return hledger.Import(e.ctx, hledger.ImportOptions{Path: c.File, Name: c.Name, Commodities: commodities,
		Conversion: c.ConversionAccount, Virtual: c.VirtualAccount, IDTag: c.IDTag, Part: c.Part, KeepGoing: c.KeepGoing,
		Client: c.dial(), Stdin: os.Stdin, Out: e.out, Err: e.errOut})
}
