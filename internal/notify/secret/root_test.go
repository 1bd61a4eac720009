package secret_test

import (
	"bytes"
	"encoding/base64"
	"strings"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// parse returns keys made of a letter each, the newest first.
func parse(t *testing.T, letters string) *secret.Master {
	t.Helper()
	var lines []string
	for _, l := range letters {
		lines = append(lines, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte(string(l)), secret.Size)))
	}
	m, err := secret.Parse(strings.Join(lines, "\n") + "\n")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestKeysAreReadOneALine(t *testing.T) {
	t.Parallel()
	ids := parse(t, "ab").IDs()
	if len(ids) != 2 || ids[0] == ids[1] || ids[0] != parse(t, "a").IDs()[0] || len(ids[0]) != 8 {
		t.Errorf("%v", ids)
	}
	if !bytes.Equal(parse(t, "ab").Derive("x"), parse(t, "a").Derive("x")) {
		t.Error("the first key does not derive")
	}
	for _, text := range []string{known + "\n" + known, known + "\nhunter2"} {
		if _, err := secret.Parse(text); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestRootSecretSurvivesTheMasterKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	app, super := pgtest.Pool(t, db.AppDSN), pgtest.Pool(t, db.SuperDSN)
	roots := make([]*secret.Master, 8)
	var group sync.WaitGroup
	for i := range roots {
		group.Go(func() { // servers that start at the same time, in the middle of a rotation
			keys := "ab"
			if i%2 == 1 {
				keys = "ba"
			}
			var err error
			if roots[i], err = parse(t, keys).Root(t.Context(), app); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	same := func(what, keys string) {
		t.Helper()
		root, err := parse(t, keys).Root(t.Context(), app)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		for _, first := range append(roots, root) {
			if !bytes.Equal(first.Derive("x", "1"), root.Derive("x", "1")) {
				t.Fatalf("%s: the derived key is another", what)
			}
		}
		if text, err := root.Open(roots[0].Seal([]byte("123456"), "x"), "x"); err != nil || string(text) != "123456" {
			t.Errorf("%s: %q, %v", what, text, err)
		}
	}
	sealing := func(keys string) secret.Sealing {
		t.Helper()
		s, err := secret.Check(t.Context(), super, parse(t, keys))
		if err != nil {
			t.Error(err)
		}
		return s
	}
	same("made", "ab")
	old := "a"
	if sealing("ab").KeyID != parse(t, "a").IDs()[0] {
		old = "b"
	}
	if bytes.Equal(roots[0].Derive("x", "1"), parse(t, old).Derive("x", "1")) {
		t.Error("the root secret is the master key")
	}
	if s := sealing("c" + old); s.Newest {
		t.Errorf("before resealing: %+v", s)
	}
	if _, err := secret.Reseal(t.Context(), app, parse(t, "c"+old)); err == nil {
		t.Error("the service can replace the root secret")
	}
	for range 2 { // the second changes nothing
		if s, err := secret.Reseal(t.Context(), super, parse(t, "c"+old)); err != nil || !s.Newest {
			t.Errorf("%+v, %v", s, err)
		}
	}
	same("both keys", "c"+old)
	same("both keys in the old order", old+"c")
	same("the new key alone", "c")
	id := parse(t, "c").IDs()[0]
	if _, err := parse(t, old+"d").Root(t.Context(), app); err == nil ||
		!strings.Contains(err.Error(), "needs the master key "+id) {
		t.Errorf("without the key: %v", err)
	}
	if _, err := super.Exec(t.Context(),
		"update secret_roots set sealed = sha256('x') || substr(sealed, 33)"); err != nil {
		t.Fatal(err)
	}
	if _, err := parse(t, "c").Root(t.Context(), app); err == nil || !strings.Contains(err.Error(), "was changed") {
		t.Errorf("changed: %v", err)
	}
}

// A server that finds a standby, before any server has run on its primary, says so.
func TestRootSecretIsCreatedOnThePrimary(t *testing.T) {
	t.Parallel()
	standby := pgtest.Pool(t, pgtest.New(t).AppDSN+"&default_transaction_read_only=on")
	_, err := parse(t, "a").Root(t.Context(), standby)
	if err == nil || !strings.Contains(err.Error(), "the first server has to start on the primary") {
		t.Errorf("%v", err)
	}
}
