"""What people do with a running fleet beside `pulumi preview` and `up`: collect host keys, look for drift. Changes no host."""
