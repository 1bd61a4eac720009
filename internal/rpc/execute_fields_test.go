package rpc_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ledgerd/ledgerd/internal/access"
)

// Each field of each request is filled in by several references: the call succeeds, or its error says what is wrong.
func TestEveryFieldTakesAReference(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	c.stocked("tea")
	c.preparePayments("q")
	n := 0
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		m := changes[name].well("a")
		if m == nil {
			continue
		}
		m = c.fenced(m)
		var walk func(x protoreflect.Message, at string)
		var paths []string
		walk = func(x protoreflect.Message, at string) {
			fields := x.Descriptor().Fields()
			for i := range fields.Len() {
				f := fields.Get(i)
				if f.IsMap() {
					continue
				}
				switch {
				case f.Kind() == protoreflect.MessageKind && f.IsList():
					for j := range x.Get(f).List().Len() {
						walk(x.Get(f).List().Get(j).Message(), fmt.Sprintf("%s%s[%d].", at, f.Name(), j))
					}
				case f.Kind() == protoreflect.MessageKind:
					if x.Has(f) {
						walk(x.Get(f).Message(), at+string(f.Name())+".")
					}
				case f.IsList():
				case f.Kind() == protoreflect.Int64Kind, slices.Contains([]protoreflect.Name{"amount", "min_balance",
					"max_balance", "balance_at_least", "order_no", "reservation_no"}, f.Name()):
					paths = append(paths, at+string(f.Name()))
				}
			}
		}
		walk(m.ProtoReflect(), "")
		for _, p := range paths {
			for _, result := range []string{"id", "entries[1].amount", "biz_no", "entries[1].version"} {
				n++
				q := proto.Clone(m)
				clearField(q.ProtoReflect(), p)
				a := c.call(connectJSON, "Batch.Execute", execute(
					operation("t", pay(fmt.Sprint("every", n), "world", "u:a", "1")),
					operation("o", q, p+"=t:transfer."+result)))
				if a.Code == "" {
					continue
				}
				if reason := a.Reason(t); slices.Contains([]string{"INTERNAL", "ROWS_LOCKED", "UNKNOWN"}, reason) {
					t.Errorf("%s: %s = transfer.%s: %s %s", name, p, result, reason, a.Message)
				}
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d references", n)
	}
}

// clearField clears the field of a path such as postings[0].amount.
func clearField(m protoreflect.Message, path string) {
	name, rest, inner := strings.Cut(path, ".")
	name, index, list := strings.Cut(strings.TrimSuffix(name, "]"), "[")
	f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	n, _ := strconv.Atoi(index)
	switch {
	case !inner:
		m.Clear(f)
	case list:
		clearField(m.Mutable(f).List().Get(n).Message(), rest)
	default:
		clearField(m.Mutable(f).Message(), rest)
	}
}
