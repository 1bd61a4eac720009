package helpers_test // want package-name
