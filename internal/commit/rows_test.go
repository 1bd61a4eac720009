package commit

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The model is a plain map. It predicts the values after Undo and the rows to insert and to update.
func TestRowsMatchAModel(t *testing.T) {
	t.Parallel()
	table := NewKeyOrder[int, string](cmp.Compare)
	rapid.Check(t, func(t *rapid.T) {
		const keys = 5
		rows := table.Rows()
		stored, now, marked := map[int]string{}, map[int]string{}, map[int]string{}
		written, markedWritten := map[int]bool{}, map[int]bool{}
		copyOf := func(to, from map[int]string) {
			clear(to)
			for k, v := range from {
				to[k] = v
			}
		}
		handles := make([]*Row[int, string], keys)
		for k := range keys {
			handles[k] = rows.Want(k)
			if rapid.Bool().Draw(t, "stored") {
				stored[k] = fmt.Sprint("stored", k)
				rows.Load(handles[k], stored[k])
			}
		}
		copyOf(now, stored)
		added := keys
		rows.Mark()
		copyOf(marked, now)
		for i := range rapid.IntRange(0, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				k := rapid.IntRange(0, keys-1).Draw(t, "key")
				*rows.Change(handles[k]) = fmt.Sprint("step", i)
				now[k], written[k] = fmt.Sprint("step", i), true
			case 1:
				rows.Add(added, fmt.Sprint("step", i))
				now[added], written[added] = fmt.Sprint("step", i), true
				added++
			case 2:
				rows.Mark()
				copyOf(marked, now)
				clear(markedWritten)
				for k := range written {
					markedWritten[k] = true
				}
			case 3:
				rows.Undo()
				copyOf(now, marked)
				clear(written)
				for k := range markedWritten {
					written[k] = true
				}
			}
		}
		fresh, changed := rows.Fresh(), rows.Changed()
		if n := len(fresh) + len(changed); n != len(written) {
			t.Fatalf("%d rows to write, want %d", n, len(written))
		}
		for _, r := range slices.Concat(fresh, changed) {
			if _, was := stored[r.Key]; r.Value != now[r.Key] || was != r.Found || !r.Exists {
				t.Fatalf("row %+v, want %q, in the database %v", *r, now[r.Key], was)
			}
		}
		for k, h := range handles {
			if v, exists := now[k]; h.Exists != exists || h.Value != v {
				t.Fatalf("row %d is %+v, want %q %v", k, *h, v, exists)
			}
		}
		var l LatchKeys
		if rows.Latch(&l); len(l.owned) != keys || len(rows.Sorted()) != keys {
			t.Fatal("added rows are locked too")
		}
	})
}

// A row named after the load would seem not to exist.
func TestRowsMustBeNamedBeforeTheLoad(t *testing.T) {
	t.Parallel()
	rows := NewKeyOrder[int, string](cmp.Compare).Rows()
	before := rows.Want(1)
	rows.Start(Times{}, func() int64 { return 1 })
	if rows.Want(1) != before {
		t.Error("a second Want returned another row")
	}
	defer func() {
		if recover() == nil {
			t.Error("a row was named after the load")
		}
	}()
	rows.Want(2)
}
