package access

import "context"

// WaitTouched authenticates a key, and waits until its use is recorded, if it is going to be.
func WaitTouched(ctx context.Context, k *Keys, key string) error {
	_, err := k.lookup(ctx, key)
	k.recording <- struct{}{}
	return err
}
