"""Workers on hosts made of namespaces, and a program among them that is measured."""
