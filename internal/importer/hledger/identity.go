package hledger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// content is a hash of what identifies a transaction: date, code, description, and by account and
// asset the amount that it moves. Comments, tags and statuses change in the life of a journal without
// moving money, so they are not part of it.
type content [12]byte

func (c content) String() string { return hex.EncodeToString(c[:]) }

// contentOf hashes a transaction whose sheet is balanced. The order of postings does not matter, nor
// how many decimals an amount is written with.
func contentOf(t *transaction, s *sheet) content {
	var lines []string
	for _, c := range s.assets {
		for account, n := range c.sums {
			if !n.IsZero() {
				moved := amount.NewDecimal(n, c.asset.scale).String()
				lines = append(lines, fmt.Sprintf("%q\n", []string{c.asset.code, account, moved}))
			}
		}
	}
	slices.Sort(lines)
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", []string{t.Date, t.Code, t.Description})
	for _, l := range lines {
		h.Write([]byte(l))
	}
	return content(h.Sum(nil)[:len(content{})])
}

// identity names a transaction in every import of its journal: by the value of the tag that the
// journal gives it, or else by its content, and which one with this content it is.
type identity struct {
	tag     string
	content content
	ordinal int
}

// prefix is what all biz_nos of a journal begin with.
func prefix(journal string) string { return "hledger:" + journal + ":" }

// tagged comes before the value of a tag; no content reads like it.
const tagged = "id:"

func (i identity) bizNo(journal string) string {
	if i.tag != "" {
		return prefix(journal) + tagged + i.tag
	}
	return prefix(journal) + i.content.String() + ":" + strconv.Itoa(i.ordinal)
}

// inLedger is an identity read back from a transfer, with the hash over all of the transaction.
// False for a transfer that no import made.
func inLedger(journal string, t *ledgerv1.Transfer) (i identity, all uint64, ok bool) {
	name, ours := strings.CutPrefix(t.GetBizNo(), prefix(journal))
	hash, err := strconv.ParseUint(t.GetMetadata()[metaHash], 16, 64)
	if !ours || err != nil {
		return i, 0, false
	}
	text, ordinal, _ := strings.Cut(name, ":")
	if tag, isTag := strings.CutPrefix(name, tagged); isTag {
		i.tag, text = tag, t.GetMetadata()[metaContent]
	} else if i.ordinal, err = strconv.Atoi(ordinal); err != nil {
		return i, 0, false
	}
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(i.content) {
		return i, 0, false
	}
	i.content = content(raw)
	return i, hash, true
}

// inventory is all transactions of a journal by identity, held against the ledger.
type inventory struct {
	copies map[content]*copies
	tags   map[string]*named
	// there are those that the ledger has. Their content is empty where a tag identifies them.
	there map[identity]struct{}
}

// copies are the transactions with one content.
type copies struct {
	journal, ledger int
	// rest adds up the hashes over all of each: those of the journal, less those of the ledger. Which
	// copy is which does not matter then.
	rest uint64
}

type named struct {
	content content
	all     uint64
	index   int // of the first transaction with the tag
	place   importer.Place
	changed bool // in nothing but comments, tags and statuses
}

func newInventory() *inventory {
	return &inventory{copies: map[content]*copies{}, tags: map[string]*named{}, there: map[identity]struct{}{}}
}

// add takes a transaction of the journal into account.
func (v *inventory) add(t *transaction, i identity) *importer.Problem {
	all := binary.BigEndian.Uint64(t.sum())
	if i.tag != "" {
		if first := v.tags[i.tag]; first != nil {
			return t.problem("its tag has the value %q, as has the tag of the transaction at %s", i.tag, first.place)
		}
		v.tags[i.tag] = &named{content: i.content, all: all, index: t.Index, place: t.place()}
		return nil
	}
	c := v.copies[i.content]
	if c == nil {
		c = &copies{}
		v.copies[i.content] = c
	}
	c.journal++
	c.rest += all
	return nil
}

// doubled tells whether an earlier transaction has the same tag.
func (v *inventory) doubled(t *transaction, i identity) bool {
	return i.tag != "" && v.tags[i.tag].index != t.Index
}

// has tells whether the ledger has a transaction.
func (v *inventory) has(i identity) bool {
	if i.tag != "" {
		i.content = content{}
	}
	_, there := v.there[i]
	return there
}

// meet takes a transfer of the ledger into account. Empty: it is in the journal as it was imported.
func (v *inventory) meet(i identity, all uint64) (wrong string) {
	if i.tag != "" {
		n := v.tags[i.tag]
		if n == nil {
			return "was imported, and is no longer in the journal"
		}
		if n.content != i.content {
			return fmt.Sprintf("was imported, and was edited since, at %s", n.place)
		}
		n.changed = n.all != all
		i.content = content{}
		v.there[i] = struct{}{}
		return ""
	}
	c := v.copies[i.content]
	if c == nil || i.ordinal > c.journal {
		return "was imported, and is no longer in the journal"
	}
	c.ledger++
	c.rest -= all
	v.there[i] = struct{}{}
	return ""
}

// changed counts the transactions that were imported with another comment, tag or status.
func (v *inventory) changed() (n int) {
	for _, c := range v.copies {
		if c.journal == c.ledger && c.rest != 0 {
			n++
		}
	}
	for _, t := range v.tags {
		if t.changed {
			n++
		}
	}
	return n
}

// compare reads what earlier imports of the journal left in the ledger, and prints what the journal
// does not say any more: a transaction that was edited would be there twice.
func (v *inventory) compare(ctx context.Context, c *importer.Client, journal string, part bool,
	problems *importer.Problems) error {
	request := &ledgerv1.ListTransfersRequest{Type: transferType, PageSize: pageSize,
		Metadata: map[string]string{metaJournal: journal}}
	for {
		page, err := importer.Call(ctx, c, "", c.Ledger.ListTransfers, request)
		if err != nil {
			return fmt.Errorf("list what was imported before: %w", err)
		}
		for _, t := range page.GetTransfers() {
			i, all, ok := inLedger(journal, t)
			if !ok {
				continue
			}
			if wrong := v.meet(i, all); wrong != "" && (!part || i.tag != "" && v.tags[i.tag] != nil) {
				date := t.GetEffectiveTime().AsTime().Format(time.DateOnly)
				problems.Print(importer.Place{Name: t.GetBizNo()}.Problem("%s: %s %q", wrong, date,
					t.GetMetadata()[metaDescription]))
			}
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return nil
		}
	}
}
