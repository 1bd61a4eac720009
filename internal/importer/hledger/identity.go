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

// content is a hash of a transaction's identity: date, code, description, and the amounts moved by account and asset.
// Comments, tags and statuses are excluded, because they change during a journal's life without moving money.
type content [12]byte

func (c content) String() string { return hex.EncodeToString(c[:]) }

// contentOf hashes a transaction with a balanced sheet. The order of postings and trailing zeros of amounts do
// not matter.
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

// identity identifies a transaction in every import of its journal: by its identifying tag if it has one,
// otherwise by its content and an ordinal among equal contents.
type identity struct {
	tag     string
	content content
	ordinal int
}

// prefix begins all biz_nos of a journal.
func prefix(journal string) string { return "hledger:" + journal + ":" }

// tagged precedes the value of a tag; it differs from every content hash.
const tagged = "id:"

func (i identity) bizNo(journal string) string {
	if i.tag != "" {
		return prefix(journal) + tagged + i.tag
	}
	return prefix(journal) + i.content.String() + ":" + strconv.Itoa(i.ordinal)
}

// inLedger decodes an identity from a transfer, with the hash over the whole transaction. It returns false for
// a transfer that was not imported.
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

// inventory is all transactions of a journal by identity, compared with the ledger.
type inventory struct {
	copies map[content]*copies
	tags   map[string]*named
	// there has the identities found in the ledger. The content is empty for tagged ones.
	there map[identity]struct{}
}

// copies are the transactions with equal content.
type copies struct {
	journal, ledger int
	// rest is the sum of the full hashes in the journal minus those in the ledger. A sum makes the order of
	// copies irrelevant.
	rest uint64
}

type named struct {
	content content
	all     uint64
	index   int // of the first transaction with the tag
	place   importer.Place
	changed bool // only in comments, tags or statuses
}

func newInventory() *inventory {
	return &inventory{copies: map[content]*copies{}, tags: map[string]*named{}, there: map[identity]struct{}{}}
}

// add adds a transaction of the journal.
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

// doubled reports whether an earlier transaction has the same tag.
func (v *inventory) doubled(t *transaction, i identity) bool {
	return i.tag != "" && v.tags[i.tag].index != t.Index
}

// has reports whether the ledger has a transaction.
func (v *inventory) has(i identity) bool {
	if i.tag != "" {
		i.content = content{}
	}
	_, there := v.there[i]
	return there
}

// match compares a transfer of the ledger with the journal. Empty: it is in the journal as imported.
func (v *inventory) match(i identity, all uint64) (wrong string) {
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

// compare checks earlier imports of the journal in the ledger, and prints transfers that the journal no longer
// has: an edited transaction would otherwise be posted twice.
func (v *inventory) compare(ctx context.Context, c *importer.Client, journal string, part bool,
	problems *importer.Problems) error {
	request := &ledgerv1.ListTransfersRequest{Type: transferType, PageSize: pageSize,
		Metadata: map[string]string{metaJournal: journal}}
	for {
		page, err := importer.Call(ctx, c, "", c.Ledger.ListTransfers, request)
		if err != nil {
			return fmt.Errorf("list earlier imports: %w", err)
		}
		for _, t := range page.GetTransfers() {
			i, all, ok := inLedger(journal, t)
			if !ok {
				continue
			}
			if wrong := v.match(i, all); wrong != "" && (!part || i.tag != "" && v.tags[i.tag] != nil) {
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
