package rpc

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

func TestPathsHaveNamesOfProtoOrJSON(t *testing.T) {
	t.Parallel()
	const want = "transfer.entries[1].balance_after"
	for _, s := range []string{want, "transfer.entries[1].balanceAfter"} {
		p, problem := parsePath(s, (*ledgerv1.CaptureResponse)(nil).ProtoReflect().Descriptor())
		if problem != "" || p.String() != want {
			t.Errorf("%s: %s %s", s, p, problem)
		}
	}
}

// FuzzPath checks that a parsed path is stable through String, that it can be set where it can be read, and that get
// accepts messages without the fields on the way.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"transfer.id", "transfer.entries[0].amount", "transfer.entries[65535].version",
		"hold.metadata", "postings[0]", "[", "a[-1]", "..",
		"transfer.entries[].amount", "transfer.entries[0]x.amount", "transfer[0].id", "transfer.entries[00].amount",
		"existed"} {
		f.Add(s)
	}
	full := &ledgerv1.CaptureResponse{Transfer: &ledgerv1.Transfer{Id: 7,
		Entries: []*ledgerv1.Entry{{Amount: "-1.00"}, {Amount: "1.00"}}}, Hold: &ledgerv1.Hold{Id: 8}}
	f.Fuzz(func(t *testing.T, s string) {
		p, problem := parsePath(s, full.ProtoReflect().Descriptor())
		if problem != "" {
			return
		}
		again, problem := parsePath(p.String(), full.ProtoReflect().Descriptor())
		if problem != "" || again.String() != p.String() {
			t.Fatalf("%q is parsed as %s, and that as %s %s", s, p, again, problem)
		}
		p.get(new(ledgerv1.CaptureResponse).ProtoReflect())
		before, found := p.get(full.ProtoReflect())
		if p.last().Kind() != protoreflect.Int64Kind || p.last().IsList() {
			return
		}
		m := proto.Clone(full).ProtoReflect()
		if p.set(m, protoreflect.ValueOfInt64(41)) != found && found {
			t.Fatalf("%s can be read but not set", p)
		}
		if after, _ := p.get(m); found && (after.Int() != 41 || before.Int() == 41) {
			t.Fatalf("%s is %v after %v", p, after, before)
		}
	})
}
